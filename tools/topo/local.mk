# SPDX-License-Identifier: Apache-2.0
banyan_topo_SOURCES = \
  %D%/check.c %D%/topo.h \
  %D%/dot.c \
  %D%/draw.c \
  %D%/findings.c \
  %D%/fold.c \
  %D%/inputs.c \
  %D%/json.c %D%/json.h \
  %D%/level_table.c \
  %D%/line.c \
  %D%/main.c \
  %D%/matrix.c \
  %D%/network.c \
  %D%/output.c \
  %D%/tree.c
banyan_topo_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
banyan_topo_LDADD = libbanyan_topo.la libbanyan_options.la libbanyan_core.la $(JANSSON_LIBS)

# Tests also use these sources.
libbanyan_launch_la_SOURCES += \
  %D%/measure/cpus.c \
  %D%/measure/measure.c %D%/measure/measure.h \
  %D%/measure/ranks.c \
  %D%/measure/work.c
libbanyan_options_la_SOURCES += \
  %D%/measure/costs.c
