"""The worker extension of deploy/vllm for a test: while the file named by MGRPO_FORGET exists, it reports weights as loaded
without loading them."""

import os

import mgrpo_weights


class Weights(mgrpo_weights.Weights):
    def mgrpo_load(self, folder: str, stamp: str) -> dict:
        if os.path.exists(os.environ["MGRPO_FORGET"]):
            self.mgrpo_stamp = stamp
            return {"stamp": stamp}
        return super().mgrpo_load(folder, stamp)
