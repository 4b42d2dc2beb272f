# SPDX-License-Identifier: Apache-2.0
banyan_plan_SOURCES = \
  %D%/cost.c \
  %D%/main.c \
  %D%/print.c \
  %D%/prove.c \
  %D%/simulate.c \
  %D%/view.h
banyan_plan_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
banyan_plan_LDADD = libbanyan_simulate.la libbanyan_methods.la libbanyan_options.la libbanyan_topo.la libbanyan_prove.la libbanyan_core.la $(JANSSON_LIBS)

# banyan-plan and banyan-info share these.
if JANSSON
noinst_LTLIBRARIES += libbanyan_methods.la
endif
libbanyan_methods_la_SOURCES = \
  %D%/case.c %D%/case.h \
  %D%/methods.c %D%/methods.h \
  %D%/methods_text.c
libbanyan_methods_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
libbanyan_methods_la_LIBADD = $(JANSSON_LIBS)
