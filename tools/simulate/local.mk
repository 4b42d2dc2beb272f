# SPDX-License-Identifier: Apache-2.0
# banyan-plan simulates with this. SimGrid is in a module that it loads, so that no tool links it.
if JANSSON
noinst_LTLIBRARIES += libbanyan_simulate.la
endif
libbanyan_simulate_la_SOURCES = \
  %D%/platform.c \
  %D%/rivals.c %D%/rivals.h \
  %D%/run.c \
  %D%/simulate.h
libbanyan_simulate_la_CFLAGS = $(AM_CFLAGS)
if SIMULATE_MODULE
pkglib_LTLIBRARIES += banyan-simulate.la
libbanyan_simulate_la_CFLAGS += -DBNY_SIMULATE_MODULE_FOLDER='"$(pkglibdir)"'
endif
banyan_simulate_la_SOURCES = %D%/engine.cc
banyan_simulate_la_CXXFLAGS = $(plain_cxxflags) $(SIMGRID_CFLAGS)
banyan_simulate_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared $(no_undefined)
banyan_simulate_la_LIBADD = $(SIMGRID_LIBS)
