# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_bytes \
  %D%/test_call_fields \
  %D%/test_calls \
  %D%/test_allreduce \
  %D%/test_select \
  %D%/test_arguments \
  %D%/test_attend \
  %D%/test_attend_select \
  %D%/test_attention \
  %D%/test_attention_rejected \
  %D%/test_attention_rows \
  %D%/test_attention_threads \
  %D%/test_combine \
  %D%/test_contract \
  %D%/test_convert \
  %D%/test_exact_attention \
  %D%/test_float_mode \
  %D%/test_heads \
  %D%/test_layer \
  %D%/test_valid \
  %D%/test_valid_calls \
  %D%/test_mismatch \
  %D%/test_overlap \
  %D%/test_pass \
  %D%/test_persistent \
  %D%/test_presets \
  %D%/test_prune \
  %D%/test_wire_bound
libbanyan_tests_la_SOURCES += \
  %D%/calls.def \
  %D%/attention_local.h
