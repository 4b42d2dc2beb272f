# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_launch
%C%_test_launch_LDADD = libbanyan_launch.la $(LDADD)
test_scripts += \
  %D%/test_examples.sh \
  %D%/test_quickstart.sh \
  %D%/test_spack.py \
  %D%/test_info_tool.sh \
  %D%/test_plan_tool.sh \
  %D%/test_tools.sh \
  %D%/test_topo_tool.sh \
  %D%/test_usage.sh
EXTRA_DIST += %D%/prelude.sh %D%/tools_checks.py
