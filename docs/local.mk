# SPDX-License-Identifier: Apache-2.0
# Pages keep their folders, because they link to one another.
nobase_dist_doc_DATA += \
  %D%/algorithms.md \
  %D%/bootstrap.md \
  %D%/certain.md \
  %D%/comparison.md \
  %D%/design.md \
  %D%/devices-predicted.md \
  %D%/examples/waits.bt \
  %D%/gpu-results/README.md \
  %D%/gpu-results/h200-2026-11-28.json \
  %D%/integration.md \
  %D%/migration.md \
  %D%/numbers.md \
  %D%/observability.md \
  %D%/options.md \
  %D%/performance.md \
  %D%/python.md \
  %D%/reliability.md \
  %D%/scale.md \
  %D%/security.md \
  %D%/pictures/certain.svg \
  %D%/pictures/combine.svg \
  %D%/pictures/levels.svg \
  %D%/pictures/paper.svg \
  %D%/pictures/scale-beyond.svg \
  %D%/pictures/scale-depth.svg \
  %D%/pictures/scale-growth.svg \
  %D%/pictures/scale-paper.svg \
  %D%/testing.md \
  %D%/topology.md \
  %D%/tour.md \
  %D%/troubleshooting.md \
  %D%/vllm.md

# The reference of the calls, generated from the public headers: man pages of section 3, which a tarball contains.
EXTRA_DIST += %D%/charts.py %D%/options.py %D%/reference.py %D%/scale.json %D%/scale.py
man3dir = $(mandir)/man3
reference_headers = $(srcdir)/include/banyan.h $(srcdir)/include/banyan_attention.h $(srcdir)/include/banyan_ownership.h $(srcdir)/include/banyan_mpi.h $(srcdir)/include/banyan_device.cuh
man: %D%/man/stamp
%D%/man/stamp: $(srcdir)/%D%/reference.py $(reference_headers)
if PYTHON3
	$(AM_V_GEN)$(PYTHON3) $(srcdir)/%D%/reference.py man $(@D) $(PACKAGE_VERSION) $(reference_headers)
	@touch $@
all-local: man
else
	@echo "python3 is missing: no reference of the calls is made"
endif
.PHONY: man

dist-hook: man
	$(MKDIR_P) $(distdir)/%D%/man
	cp %D%/man/*.3 $(distdir)/%D%/man
	cd $(distdir) && find python integrations \( -name __pycache__ -o -name '.*_cache' -o -name '*.egg-info' -o -name build \
	  -o -name dist \) -prune -exec rm -r {} + && find python integrations -type f \( -name '*.log' -o -name '*.trs' \
	  -o -name '*.so' \) -exec rm {} +
# The pages are from this build or else from the tarball.
reference_pages = from=%D%/man; test -e $$from/stamp || from=$(srcdir)/%D%/man; ls $$from/*.3 2>/dev/null
install-data-local:
	@$(MKDIR_P) '$(DESTDIR)$(man3dir)'
	@$(reference_pages) | while read -r page; do $(INSTALL_DATA) $$page '$(DESTDIR)$(man3dir)' || exit; done
uninstall-local:
	@$(reference_pages) | while read -r page; do rm -f "$(DESTDIR)$(man3dir)/$${page##*/}"; done
clean-local:
	test ! -e %D%/man/stamp || rm -rf %D%/man
