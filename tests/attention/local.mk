# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_laws
