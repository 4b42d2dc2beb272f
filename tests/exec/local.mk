# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_alloc \
  %D%/test_bad_data \
  %D%/test_faults \
  %D%/test_flight \
  %D%/test_rejected
