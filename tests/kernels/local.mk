# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_attention_tables \
  %D%/test_exact \
  %D%/test_f8 \
  %D%/test_kernels \
  %D%/test_merge_math \
  %D%/test_partial_check \
  %D%/test_select
test_scripts += %D%/test_neon.sh
