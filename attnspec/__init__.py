"""What attention means: a specification, one implementation on the Python Array API, and a conformance suite.

Arrays carry their framework: `attnspec.attention(q, k, v)` takes NumPy, PyTorch, JAX or any other Array API arrays
and computes in their own library, on their own device.
"""

from . import errors, random
from .attention import attention, attention_weights, attention_with_lse
from .bias import Bias, alibi, relative_bias
from .dropout import dropout
from .masks import Mask, as_mask, causal, padding, segments, window
from .request import Dropout, Request
from .rotary import Rotary, rotary
from .softmax import merge_attention

__version__ = "0.1.0"
