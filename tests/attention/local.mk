# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_laws \
  %D%/test_parts
libbanyan_tests_la_SOURCES += \
  %D%/drawn.h
