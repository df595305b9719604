"""The newest operator set, which adds every finite number, in the place of the older ones."""

from onnx import helper

make_opsetid = helper.make_opsetid
helper.make_opsetid = lambda domain, opset: make_opsetid(domain, 25)
