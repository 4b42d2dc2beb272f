# SPDX-License-Identifier: Apache-2.0
# The Python package. pip builds it, and its test builds it in the build folder. Its folders are distributed whole.
test_scripts += %D%/tests/test_python.sh
EXTRA_DIST += \
  %D%/CMakeLists.txt \
  %D%/README.md \
  %D%/banyan \
  %D%/build_wheels.sh \
  %D%/docstrings.py \
  %D%/pyproject.toml \
  %D%/src \
  %D%/tests
MOSTLYCLEAN_FOLDERS += python/venv
