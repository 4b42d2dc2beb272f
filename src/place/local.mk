# SPDX-License-Identifier: Apache-2.0
place_sources = \
  %D%/price.c %D%/price.h
libbanyan_core_la_SOURCES += $(place_sources)
