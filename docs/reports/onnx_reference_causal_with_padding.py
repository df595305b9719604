import sys

import numpy as np
import onnx.inliner
from onnx.reference import ReferenceEvaluator

print("onnx", onnx.__version__)
real = np.array([[True, True, True], [True, True, False]]).reshape(2, 1, 1, 3)  # two sequences, the second is padded
bias = np.where(real, np.float32(0), np.float32(-np.inf))
inputs = {"Q": np.ones((2, 1, 3, 1), "f"), "K": np.ones((2, 1, 3, 1), "f"), "V": np.array([[[[1], [2], [6]]]] * 2, "f")}
graph = "g(float[2,1,3,1] Q, float[2,1,3,1] K, float[2,1,3,1] V, %s mask) => (float[2,1,3,1] Y)"
node, wrong = "{ Y = Attention<is_causal=1>(Q, K, V, mask) }", 0
for kind, inputs["mask"] in (("bool[2,1,1,3]", real), ("float[2,1,1,3]", bias), ("bool[3]", real[1, 0, 0])):
    for opset in (23, 24, 25):
        model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": {opset}]>' + graph % kind + node)
        body = onnx.inliner.inline_selected_functions(model, [("", "Attention")], inline_schema_functions=True)
        right = ReferenceEvaluator(body).run(None, inputs)[0][:, 0, :, 0].tolist()
        try:
            out = ReferenceEvaluator(model).run(None, inputs)[0][:, 0, :, 0].tolist()
        except ValueError as error:
            out = error
        wrong += out != right
        print(f"opset {opset}, attn_mask {kind}: {out}; right: {right}")
sys.exit(int(wrong > 0))
