# SPDX-License-Identifier: Apache-2.0
# Code that tests share.
check_LTLIBRARIES += libbanyan_tests.la
libbanyan_tests_la_SOURCES = \
  %D%/attend.c %D%/attend.h \
  %D%/attention_oracle.c %D%/attention_oracle.h \
  %D%/clock.h \
  %D%/combine_task.c %D%/combine_task.h \
  %D%/directory.h \
  %D%/drawn.c %D%/drawn.h \
  %D%/flush.h \
  %D%/generator.h \
  %D%/scores.h \
  %D%/lone.h \
  %D%/placed.h \
  %D%/port.h \
  %D%/oracle.c %D%/oracle.h \
  %D%/random.h \
  %D%/rounds.h \
  %D%/rows.h \
  %D%/sanitized.h \
  %D%/self.h \
  %D%/sheet.c %D%/sheet.h \
  %D%/sheet_check.c \
  %D%/sheet_element.h \
  %D%/space.h \
  %D%/status.h \
  %D%/suite.h \
  %D%/world.c %D%/world.h \
  %D%/world_emulated.c \
  %D%/world_gpu.c
if CUDA
libbanyan_tests_la_LIBADD = libbanyan_gpu.la libbanyan_launch.la
endif

# Preloaded by tests/machine.
check_LTLIBRARIES += %D%/fake_affinity.la
%C%_fake_affinity_la_SOURCES = %D%/fake_affinity.c
%C%_fake_affinity_la_LIBADD =
%C%_fake_affinity_la_LDFLAGS = $(module_flags)
