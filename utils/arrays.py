"""NumPy arrays by the type of their elements, as annotations name them."""

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
DateArray = NDArray[np.datetime64]
