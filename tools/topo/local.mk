# SPDX-License-Identifier: Apache-2.0
banyan_topo_SOURCES = \
  %D%/check.c %D%/topo.h \
  %D%/compare.c \
  %D%/diff.c \
  %D%/findings.c \
  %D%/inputs.c \
  %D%/json.c %D%/json.h \
  %D%/level_table.c \
  %D%/line.c \
  %D%/main.c \
  %D%/matrix.c \
  %D%/network.c \
  %D%/output.c \
  %D%/tree.c \
  %D%/measure/json.c
banyan_topo_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
banyan_topo_LDADD = libbanyan_picture.la libbanyan_options.la libbanyan_topo.la libbanyan_core.la $(JANSSON_LIBS)

# Pictures are a separate library for their test.
noinst_LTLIBRARIES += libbanyan_picture.la
libbanyan_picture_la_SOURCES = \
  %D%/draw.c \
  %D%/fold.c \
  %D%/picture/hosts.c \
  %D%/picture/layout.c %D%/picture/layout.h \
  %D%/picture/net.c \
  %D%/picture/notes.c \
  %D%/picture/nvlink.c \
  %D%/picture/spots.c \
  %D%/picture/svg.c \
  %D%/picture/text.c \
  %D%/picture/work.h

# banyan-info also measures.
libbanyan_launch_la_SOURCES += \
  %D%/measure/cpus.c \
  %D%/measure/judge.c \
  %D%/measure/measure.c %D%/measure/measure.h \
  %D%/measure/ranks.c \
  %D%/measure/text.c \
  %D%/measure/work.c
libbanyan_options_la_SOURCES += \
  %D%/measure/costs.c
