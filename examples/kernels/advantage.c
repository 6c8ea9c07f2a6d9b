// Group-relative advantages from C. The first query has four rollouts. The second has three, and one of them has weight 0.
#include "mgrpo/advantage.h"

#include <stdio.h>

int main(void) {
  const double rewards[] = {1, 0, 0.5, 0.5, 0.2, 0.9, 0.4};
  const double weights[] = {1, 1, 1, 1, 1, 1, 0};
  const int64_t offsets[] = {0, 4, 7};
  const mgrpo_convention paper = {MGRPO_STD_POPULATION, MGRPO_BASELINE_MEAN, 0, 1e-6};
  double advantages[7];
  mgrpo_group_stats stats[2];
  mgrpo_advantage_error error;
  int32_t status = mgrpo_group_advantage_cpu(rewards, MGRPO_FLOAT64, weights, offsets, 2, &paper, advantages, stats, &error);
  if (status != MGRPO_OK) {
    fprintf(stderr, "%s: group %lld, member %lld\n", mgrpo_status_string(status), (long long)error.group, (long long)error.index);
    return 1;
  }
  for (int g = 0; g < 2; g++) {
    printf("query %d, mean %.3f:", g, stats[g].mean);
    for (int64_t i = offsets[g]; i < offsets[g + 1]; i++) printf(" %+.4f", advantages[i]);
    printf("\n");
  }
  return 0;
}
