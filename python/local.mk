# SPDX-License-Identifier: Apache-2.0
# The Python package. pip builds it, and the test does so in the build folder.
test_scripts += %D%/tests/test_python.sh
EXTRA_DIST += \
  %D%/CMakeLists.txt \
  %D%/README.md \
  %D%/build_wheels.sh \
  %D%/pyproject.toml \
  %D%/banyan/__init__.py \
  %D%/banyan/__main__.py \
  %D%/banyan/_core.pyi \
  %D%/banyan/communicator.py \
  %D%/banyan/compat.py \
  %D%/banyan/errors.py \
  %D%/banyan/jax_ops.py \
  %D%/banyan/launch.py \
  %D%/banyan/py.typed \
  %D%/banyan/torch_ops.py \
  %D%/bench/bench_attention.py \
  %D%/bench/bench_calls.py \
  %D%/bench/bench_cffi.py \
  %D%/src/array.cc \
  %D%/src/array.hh \
  %D%/src/array_check.cc \
  %D%/src/array_make.cc \
  %D%/src/attention.cc \
  %D%/src/attention_call.cc \
  %D%/src/calls.cc \
  %D%/src/combine.cc \
  %D%/src/comm.cc \
  %D%/src/comm.hh \
  %D%/src/dlpack.hh \
  %D%/src/errors.cc \
  %D%/src/errors.hh \
  %D%/src/frameworks.cc \
  %D%/src/frameworks.hh \
  %D%/src/interrupt.cc \
  %D%/src/interrupt.hh \
  %D%/src/jax_target.cc \
  %D%/src/module.cc \
  %D%/src/operation.cc \
  %D%/src/ownership.cc \
  %D%/src/torch_ops.cc \
  %D%/src/words.cc \
  %D%/src/words.hh \
  %D%/src/xla_ffi.hh \
  %D%/tests/conftest.py \
  %D%/tests/test_attention.py \
  %D%/tests/test_combine.py \
  %D%/tests/test_compat.py \
  %D%/tests/test_docs.py \
  %D%/tests/test_errors.py \
  %D%/tests/test_examples.py \
  %D%/tests/test_frameworks.py \
  %D%/tests/test_input.py \
  %D%/tests/test_jax.py \
  %D%/tests/test_live.py \
  %D%/tests/test_ownership.py \
  %D%/tests/test_stubs.py \
  %D%/tests/test_torch_ops.py
MOSTLYCLEAN_FOLDERS += python/venv
