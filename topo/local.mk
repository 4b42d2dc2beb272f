# SPDX-License-Identifier: Apache-2.0
# The library's core of topologies: the model and its JSON, probes of this machine, and levels. tools/topo/ has the rest.
noinst_LTLIBRARIES += libbanyan_topo_model.la
libbanyan_topo_model_la_SOURCES = \
  %D%/model/json.c %D%/model/json.h \
  %D%/model/load.c %D%/model/load.h \
  %D%/model/model.c %D%/model/model.h \
  %D%/model/names.c %D%/model/names.h \
  %D%/model/path.c \
  %D%/model/speed.c %D%/model/speed.h
libbanyan_topo_model_la_SOURCES += \
  %D%/probe/binding.c %D%/probe/binding.h \
  %D%/probe/nvml.c %D%/probe/nvml.h \
  %D%/probe/nvml_link.c \
  %D%/probe/pci.c %D%/probe/util.h \
  %D%/probe/probe.c %D%/probe/probe.h \
  %D%/probe/probe_nvml.c \
  %D%/probe/rdma.c \
  %D%/probe/sysfs.c \
  %D%/probe/util.c
libbanyan_topo_model_la_SOURCES += \
  %D%/levels/derive.c %D%/levels/derive.h \
  %D%/levels/fabric.c \
  %D%/levels/levels.c %D%/levels/levels.h \
  %D%/levels/near.c \
  %D%/levels/nic.c \
  %D%/levels/rails.c
libbanyan_topo_model_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
libbanyan_topo_model_la_LIBADD = $(JANSSON_LIBS)
