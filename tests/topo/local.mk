# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_topo_corpus \
  %D%/test_topo_hwloc \
  %D%/test_topo_machines \
  %D%/test_topo_measure \
  %D%/test_topo_model \
  %D%/test_topo_nccl \
  %D%/test_topo_nvml \
  %D%/test_topo_probe \
  %D%/test_topo_rdma \
  %D%/test_topo_text \
  %D%/test_topo_xml
if JANSSON
unit_tests += %D%/test_topo_costs %D%/test_topo_json %D%/test_topo_library
endif
libbanyan_tests_la_SOURCES += \
  %D%/kept.h \
  %D%/machines.def \
  %D%/topo_laws.h \
  %D%/topo_sysfs.h \
  %D%/topo_util.h \
  %D%/topo_xml_util.h
topo_ldadd = libbanyan_topo.la libbanyan_launch.la $(LDADD)
%C%_test_topo_costs_LDADD = libbanyan_options.la $(topo_ldadd)
%C%_test_topo_corpus_LDADD = $(topo_ldadd)
%C%_test_topo_hwloc_LDADD = $(topo_ldadd)
%C%_test_topo_json_LDADD = $(topo_ldadd)
%C%_test_topo_machines_LDADD = $(topo_ldadd)
%C%_test_topo_measure_LDADD = $(topo_ldadd)
%C%_test_topo_model_LDADD = $(topo_ldadd)
%C%_test_topo_nccl_LDADD = $(topo_ldadd)
%C%_test_topo_nvml_LDADD = $(topo_ldadd)
%C%_test_topo_probe_LDADD = $(topo_ldadd)
%C%_test_topo_rdma_LDADD = $(topo_ldadd)
%C%_test_topo_text_LDADD = $(topo_ldadd)
%C%_test_topo_xml_LDADD = $(topo_ldadd)
%C%_test_topo_library_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(JANSSON_CFLAGS)
%C%_test_topo_library_LDADD = $(JANSSON_LIBS) libbanyan_methods.la libbanyan_options.la $(topo_ldadd)

# A library like NVIDIA's, for the probe to load.
check_LTLIBRARIES += %D%/fake_nvml.la
module_flags = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
%C%_fake_nvml_la_SOURCES = %D%/fake_nvml.c
%C%_fake_nvml_la_LDFLAGS = $(module_flags)

EXTRA_DIST += %D%/fuzz %D%/fuzz_topo.c
