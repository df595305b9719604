"""What lies behind the valid length is replaced before it is multiplied."""

import numpy as np
import onnxruntime


class Session(onnxruntime.InferenceSession):
    def run(self, names, inputs):
        valid = np.arange(inputs["K"].shape[2])[:, None] < inputs["length"]
        return super().run(names, inputs | {name: np.where(valid, inputs[name], np.float32(0)) for name in "KV"})


onnxruntime.InferenceSession = Session
