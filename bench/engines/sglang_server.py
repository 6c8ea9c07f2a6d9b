"""SGLang's server for a test on a CPU: while the file named by MGRPO_FORGET exists, it reports that it has loaded weights although it has
not. Its processes import this file again, so each of them has the change and finds sgl_kernel in the same folder."""

import os
import sys

from sglang.srt.managers.tp_worker import BaseTpWorker

load = BaseTpWorker.update_weights_from_disk


def update_weights_from_disk(self, request):
    if os.path.exists(os.environ["MGRPO_FORGET"]):
        return True, "Succeeded to update model weights."
    return load(self, request)


BaseTpWorker.update_weights_from_disk = update_weights_from_disk

if __name__ == "__main__":
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(sys.argv[1:]))
