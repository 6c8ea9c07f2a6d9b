"""Records the calls of a tracker's stand-in in the file STAND_IN_LOG. STAND_IN has JSON with the stand-in's behaviour.

If "waits" is true, it also records each time that the script begins to wait for further rows.
"""

import json
import os
import select

behaviour = json.loads(os.environ.get("STAND_IN", "{}"))


def record(*call):
    with open(os.environ["STAND_IN_LOG"], "a") as f:
        print(json.dumps(call), file=f)


if "waits" in behaviour:
    wait = select.select

    def recorded(*args):
        record("waits")
        return wait(*args)

    select.select = recorded
