import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

print("onnxruntime", onnxruntime.__version__)
lowest, inf = np.finfo("f").min, np.inf
inputs = {"Q": np.ones((1, 1, 1, 1), "f"), "K": np.ones((1, 1, 2, 1), "f"), "V": np.array([[[[1], [3]]]], "f")}
wrong = 0
for mask, right in (([lowest, -inf], 1.0), ([lowest, lowest], 2.0), ([-3.3e38, -3.3e38], 2.0), ([-inf, -inf], 0.0)):
    inputs["mask"] = np.array([mask], "f")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in inputs.items()]
    result = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Attention", list(inputs), ["Y"])], "g", infos, [result])
    for opset in (23, 24, 25):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        out = session.run(None, inputs)[0].item()
        print(f"opset {opset}, attn_mask [{mask[0]:.4g}, {mask[1]:.4g}]: {out}; right: {right}")
        wrong += out != right
sys.exit(int(wrong > 0))
