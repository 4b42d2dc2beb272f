# SPDX-License-Identifier: Apache-2.0
place_sources = \
  %D%/device_bus.c %D%/device_bus.h \
  %D%/find.c %D%/find.h \
  %D%/of.c \
  %D%/place_levels.c \
  %D%/place.h \
  %D%/price.c %D%/price.h
libbanyan_core_la_SOURCES += $(place_sources) \
  %D%/costs.c %D%/costs.h \
  %D%/machine.c %D%/machine.h
libbanyan_core_la_LIBADD += libbanyan_topo_model.la
