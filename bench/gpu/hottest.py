#!/usr/bin/env python3
"""hottest.py FILE.csv: the kernels of a profile that `ncu --csv --page raw --metrics gpu__time_duration.sum` made, those with the most
time first. Launches of a kernel on grids of different sizes are separate rows. The status is 1 if the profile has none."""
import csv
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if line.startswith('"')))
    total = {}
    for row in rows:
        if row["ID"]:  # the row of units has none
            key = row["Kernel Name"][:100], row["Grid Size"], row["Block Size"]
            count, spent = total.get(key, (0, 0.0))
            total[key] = count + 1, spent + float(row["gpu__time_duration.sum"].replace(",", ""))
    whole = sum(spent for _, spent in total.values())
    launches = sum(count for count, _ in total.values())
    print(f"{launches} launches, {whole / 1e3:.0f} us")
    for (name, grid, block), (count, spent) in sorted(total.items(), key=lambda item: -item[1][1])[:40]:
        print(f"{spent / whole:6.1%} {count:5} launches of {spent / count / 1e3:8.1f} us  {grid} x {block} {name}")
    sys.exit(not launches)


if __name__ == "__main__":
    main()
