# SPDX-License-Identifier: Apache-2.0
place_sources = \
  %D%/device_bus.c %D%/locality.h \
  %D%/find.c \
  %D%/of.c \
  %D%/locality_levels.c %D%/locality_network.c %D%/locality_network.h \
  %D%/price.c %D%/price.h
libbanyan_core_la_SOURCES += $(place_sources) \
  %D%/costs.c \
  %D%/machine.c
libbanyan_core_la_LIBADD += libbanyan_topo_model.la
