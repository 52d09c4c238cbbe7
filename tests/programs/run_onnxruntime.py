"""ONNX Runtime: a model of a few operators, tensors on the card, a graph of the whole model."""

from __future__ import annotations

from typing import Any

import numpy
import onnxruntime
from onnx import TensorProto, helper
from scenarios import fill, main, say

FLOAT = TensorProto.FLOAT


def session(**options: str) -> Any:
    nodes = [("Add", ["x", "x"], "a"), ("Mul", ["a", "x"], "b"), ("Relu", ["b"], "y")]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, [4, 256])],
        [helper.make_tensor_value_info("y", FLOAT, [4, 256])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=[("CUDAExecutionProvider", options)])


def on_card(size: int) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type([size], numpy.uint8, "cuda", 0)


def work() -> None:
    made = session()
    data = numpy.ones((4, 256), numpy.float32)
    say(onnxruntime.__version__, made.get_providers(), made.run(None, {"x": data})[0].shape)
    copied = onnxruntime.OrtValue.ortvalue_from_numpy(data, "cuda", 0)
    say("copy", numpy.array_equal(copied.numpy(), data))


def graphs() -> None:
    made = session(enable_cuda_graph="1")
    binding = made.io_binding()
    source = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.ones((4, 256), numpy.float32), "cuda", 0)
    target = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.zeros((4, 256), numpy.float32), "cuda", 0)
    binding.bind_ortvalue_input("x", source)
    binding.bind_ortvalue_output("y", target)
    for _ in range(5):
        made.run_with_iobinding(binding)
    say("replayed", target.numpy().shape)


def out_of_memory() -> None:
    made = session(arena_extend_strategy="kSameAsRequested")
    data = {"x": numpy.ones((4, 256), numpy.float32)}
    made.run(None, data)
    fill(on_card, RuntimeError)
    say("goes on", made.run(None, data)[0].shape)


if __name__ == "__main__":
    main(globals())
