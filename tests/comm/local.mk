# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_costs \
  %D%/test_no_memory \
  %D%/test_shrink_faults \
  %D%/test_shrink_model \
  %D%/test_facts \
  %D%/test_split \
  %D%/test_shrink
libbanyan_tests_la_SOURCES += \
  %D%/injector.c %D%/injector.h
