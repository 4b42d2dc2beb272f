# SPDX-License-Identifier: Apache-2.0
# Models of machines and clusters, in which the library finds the localities of its ranks.
noinst_LTLIBRARIES += libbanyan_topo_model.la
libbanyan_topo_model_la_SOURCES = \
  %D%/model/guid.c %D%/model/guid.h \
  %D%/model/model.c %D%/model/model.h \
  %D%/model/names.c %D%/model/names.h \
  %D%/model/path.c \
  %D%/model/speed.c %D%/model/speed.h \
  %D%/model/text.c %D%/model/text.h
libbanyan_topo_model_la_SOURCES += \
  %D%/import/hwloc.c %D%/import/hwloc.h \
  %D%/import/hwloc_device.c \
  %D%/import/hwloc_link.c \
  %D%/import/ibnet.c \
  %D%/import/import.c \
  %D%/import/importers.def \
  %D%/import/json.c %D%/import/json.h \
  %D%/import/nccl.c %D%/import/nccl.h \
  %D%/import/nccl_device.c \
  %D%/import/nccl_link.c \
  %D%/import/synthetic.c %D%/import/synthetic.h \
  %D%/import/synthetic_items.c \
  %D%/import/xml.c %D%/import/xml.h
libbanyan_topo_model_la_SOURCES += \
  %D%/probe/binding.c %D%/probe/binding.h \
  %D%/probe/hwloc.c \
  %D%/probe/hwloc_binding.c \
  %D%/probe/nvml.c %D%/probe/nvml.h \
  %D%/probe/nvml_link.c \
  %D%/probe/pci.c %D%/probe/util.h \
  %D%/probe/probe.c %D%/probe/probe.h \
  %D%/probe/probe_nvml.c \
  %D%/probe/probes.def \
  %D%/probe/rdma.c \
  %D%/probe/sysfs.c \
  %D%/probe/util.c
libbanyan_topo_model_la_SOURCES += \
  %D%/derive/derive.h \
  %D%/derive/fabric.c \
  %D%/derive/derive.c \
  %D%/derive/levels.c %D%/derive/levels.h \
  %D%/derive/near.c \
  %D%/derive/nic.c \
  %D%/derive/rails.c
libbanyan_topo_model_la_CFLAGS = $(AM_CFLAGS) $(LIBXML2_CFLAGS) $(JANSSON_CFLAGS) $(HWLOC_CFLAGS)
libbanyan_topo_model_la_LIBADD = $(LIBXML2_LIBS) $(JANSSON_LIBS) $(HWLOC_LIBS)

# The tools also link this library, which writes models.
noinst_LTLIBRARIES += libbanyan_topo.la
libbanyan_topo_la_SOURCES = \
  tools/topo/health.c tools/topo/health.h \
  %D%/export/export.h \
  %D%/export/nccl.c
libbanyan_topo_la_LIBADD = libbanyan_topo_model.la
