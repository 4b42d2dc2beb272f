# SPDX-License-Identifier: Apache-2.0
plan_sources = \
  %D%/all_ranks.c \
  %D%/builder.c %D%/builder.h \
  %D%/columns.c %D%/columns.h \
  %D%/call.c %D%/call.h \
  %D%/clock.c %D%/clock.h \
  %D%/compose.c %D%/compose.h \
  %D%/estimate.c \
  %D%/forest.c %D%/forest.h \
  %D%/levels.c %D%/levels.h \
  %D%/link_cost.def \
  %D%/network.c %D%/network.h \
  %D%/payload.c %D%/payload.h \
  %D%/plan.c %D%/plan.h \
  %D%/select.c \
  %D%/slice.c %D%/slice.h \
  %D%/spread.c %D%/spread.h
plan_algorithm_sources = \
  %D%/algorithms/algorithms.def \
  %D%/algorithms/dissemination.c \
  %D%/algorithms/levels.c \
  %D%/algorithms/levels_allgather.c \
  %D%/algorithms/levels_leaders.c \
  %D%/algorithms/levels_scatter.c \
  %D%/algorithms/oneshot.c \
  %D%/algorithms/recursive_doubling.c \
  %D%/algorithms/recursive_halving.c \
  %D%/algorithms/ring.c \
  %D%/algorithms/tree.c \
  %D%/algorithms/tree_cost.c \
  %D%/algorithms/tree_shape.c %D%/algorithms/tree_shape.h \
  %D%/algorithms/twoshot.c
libbanyan_core_la_SOURCES += $(plan_sources) $(plan_algorithm_sources)

# Ranks compare a checksum of the sources that determine plans and message layouts, see bny_facts. Two builds that could
# plan differently do not work together.
plan_id_sources = $(plan_sources) $(plan_algorithm_sources) $(place_sources) %D%/../device/program.c %D%/../device/unit.c \
  %D%/../../kernels/formats.def %D%/../../kernels/cuda/program.h %D%/../../kernels/op.h
nodist_libbanyan_core_la_SOURCES = %D%/plan_id.c
CLEANFILES += %D%/plan_id.c
%D%/plan_id.c: $(plan_id_sources)
	@$(MKDIR_P) %D%
	$(AM_V_GEN)(cd $(srcdir) && cat $(plan_id_sources)) | cksum | \
	  awk '{ print "#include \"plan/plan.h\"\nconst uint32_t bny_plan_id = " $$1 "u;" }' >$@.new && mv $@.new $@
