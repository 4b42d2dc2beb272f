# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_plan \
  %D%/test_plan_broken \
  %D%/test_plan_compose \
  %D%/test_plan_levels \
  %D%/test_plan_select \
  %D%/test_plan_tree
libbanyan_tests_la_SOURCES += \
  %D%/plan_util.h
%C%_test_plan_levels_LDADD = libbanyan_topo.la $(LDADD)
