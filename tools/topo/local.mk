# SPDX-License-Identifier: Apache-2.0
banyan_topo_SOURCES = \
  %D%/dot.c \
  %D%/findings.c \
  %D%/hosts.c \
  %D%/json.c %D%/json.h \
  %D%/level_table.c \
  %D%/main.c \
  %D%/names.c \
  %D%/output.c \
  %D%/text.c \
  %D%/topo.h
banyan_topo_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
banyan_topo_LDADD = libbanyan_topo.la libbanyan_options.la libbanyan_core.la $(JANSSON_LIBS)

# Tests also use these sources.
libbanyan_launch_la_SOURCES += \
  %D%/measure/measure.c %D%/measure/measure.h \
  %D%/measure/pair.c
libbanyan_options_la_SOURCES += \
  %D%/measure/costs.c

# The tools know more of topologies than the library: other formats, and health.
noinst_LTLIBRARIES += libbanyan_topo.la
libbanyan_topo_la_SOURCES = \
  %D%/health.c %D%/health.h \
  %D%/import/hwloc.c %D%/import/hwloc.h \
  %D%/import/hwloc_device.c \
  %D%/import/hwloc_link.c \
  %D%/import/ibnet.c \
  %D%/import/import.c %D%/import/import.h \
  %D%/import/nccl.c %D%/import/nccl.h \
  %D%/import/nccl_device.c \
  %D%/import/nccl_link.c \
  %D%/import/synthetic.c \
  %D%/import/text.c %D%/import/text.h \
  %D%/import/xml.c %D%/import/xml.h
libbanyan_topo_la_CFLAGS = $(AM_CFLAGS) $(LIBXML2_CFLAGS)
libbanyan_topo_la_LIBADD = $(LIBXML2_LIBS)
