# SPDX-License-Identifier: Apache-2.0
# Tests use these sources, which need no JSON.
noinst_LTLIBRARIES += libbanyan_launch.la
libbanyan_launch_la_SOURCES = \
  %D%/launch.c %D%/launch.h \
  %D%/read_all.h \
  %D%/util.c %D%/util.h

# The command line and the JSON of every tool.
if JANSSON
noinst_LTLIBRARIES += libbanyan_options.la
endif
libbanyan_options_la_SOURCES = \
  %D%/json.c %D%/json.h \
  %D%/options.c %D%/options.h
libbanyan_options_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
libbanyan_options_la_LIBADD = libbanyan_launch.la $(JANSSON_LIBS)

# Each tool has a folder, with a man page in it.
tools = banyan-decode banyan-info banyan-perf banyan-plan banyan-topo
tool_pages = \
  tools/decode/banyan-decode.1 \
  tools/info/banyan-info.1 \
  tools/perf/banyan-perf.1 \
  tools/plan/banyan-plan.1 \
  tools/topo/banyan-topo.1
if JANSSON
bin_PROGRAMS += $(tools)
dist_man_MANS += $(tool_pages)
else
EXTRA_PROGRAMS += $(tools)
endif
CLEANFILES += $(tool_pages)
EXTRA_DIST += $(tool_pages:=.md) %D%/man.awk

# A man page begins with its tool's description of the options. Sections written by hand follow.
man_page = $(AM_V_GEN)$(MKDIR_P) $(@D) && \
  { ./$(@F:.1=)$(EXEEXT) --help-man && $(AWK) -f $(man_awk) $(srcdir)/$@.md; } >$@.tmp && mv $@.tmp $@
man_awk = $(srcdir)/tools/common/man.awk
tools/decode/banyan-decode.1: tools/decode/banyan-decode.1.md $(man_awk) banyan-decode$(EXEEXT)
	$(man_page)
tools/info/banyan-info.1: tools/info/banyan-info.1.md $(man_awk) banyan-info$(EXEEXT)
	$(man_page)
tools/perf/banyan-perf.1: tools/perf/banyan-perf.1.md $(man_awk) banyan-perf$(EXEEXT)
	$(man_page)
tools/plan/banyan-plan.1: tools/plan/banyan-plan.1.md $(man_awk) banyan-plan$(EXEEXT)
	$(man_page)
tools/topo/banyan-topo.1: tools/topo/banyan-topo.1.md $(man_awk) banyan-topo$(EXEEXT)
	$(man_page)

# Programs that measure and test on a GPU use these sources.
if CUDA
noinst_LTLIBRARIES += libbanyan_gpu.la
endif
libbanyan_gpu_la_SOURCES = \
  %D%/device_ranks.c %D%/device_ranks.h \
  %D%/gpu.c %D%/gpu.h \
  %D%/gpu_driver.h
libbanyan_gpu_la_CFLAGS = $(AM_CFLAGS) $(CUDA_CFLAGS)
libbanyan_gpu_la_LIBADD = libbanyan_driver.la

# The tools that start ranks use these sources.
if JANSSON
noinst_LTLIBRARIES += libbanyan_tools.la
endif
libbanyan_tools_la_SOURCES = \
  %D%/float.c %D%/float.h \
  %D%/safetensors.c %D%/safetensors.h \
  %D%/mpi.c %D%/mpi.h \
  %D%/world.c %D%/world.h
libbanyan_tools_la_CFLAGS = $(tools_cflags)
libbanyan_tools_la_LIBADD = libbanyan_options.la $(tools_libs)

# The tools load this module under mpirun. They do not link MPI themselves.
if MPI_MODULE
pkglib_LTLIBRARIES += banyan-mpi-tools.la
endif
banyan_mpi_tools_la_SOURCES = %D%/mpi_module.c
banyan_mpi_tools_la_CFLAGS = $(AM_CFLAGS) $(MPI_CFLAGS)
banyan_mpi_tools_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared $(no_undefined)
banyan_mpi_tools_la_LIBADD = libbanyan-mpi.la libbanyan.la $(MPI_LIBS)
# libtool relinks the module against installed libraries. A variable names the target, or automake would replace its own
# rule by this one.
install_mpi_module = install-pkglibLTLIBRARIES
$(install_mpi_module): install-libLTLIBRARIES
