import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

print("onnxruntime", onnxruntime.__version__)
wrong = 0
for opset, tail_of in ((24, "K"), (25, "K"), (24, "V"), (25, "V")):
    inputs = {"Q": np.ones((1, 1, 1, 1), "f"), "K": np.ones((1, 1, 4, 1), "f"), "V": np.full((1, 1, 4, 1), 3, "f")}
    inputs[tail_of][..., 2:, :] = np.nan  # a cache of 4 places, 2 of them filled
    inputs["length"] = np.array([2])
    node = helper.make_node("Attention", ["Q", "K", "V", "", "", "", "length"], ["Y"])
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, inputs[n].shape) for n in "QKV"]
    infos.append(helper.make_tensor_value_info("length", TensorProto.INT64, [1]))
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    out = session.run(None, inputs)[0].item()
    print(f"opset {opset}, NaN in the padding of {tail_of}: {out}; right: 3.0")
    wrong += out != 3
sys.exit(int(wrong > 0))
