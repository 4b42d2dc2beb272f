/* SPDX-License-Identifier: Apache-2.0
 *
 * Static probes for bpftrace, SystemTap and perf: a no-op in the code of each until one is attached. The provider is
 * `banyan`; docs/observability.md lists the probes and their arguments. */
#ifndef BNY_EXEC_PROBE_H
#define BNY_EXEC_PROBE_H

#if !defined(WITHOUT_SDT) && __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define BNY_PROBE_4(name, a, b, c, d) DTRACE_PROBE4(banyan, name, a, b, c, d)
#define BNY_PROBE_6(name, a, b, c, d, e, f) DTRACE_PROBE6(banyan, name, a, b, c, d, e, f)
#else
#define BNY_PROBE_4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#define BNY_PROBE_6(name, a, b, c, d, e, f) ((void)(a), (void)(b), (void)(c), (void)(d), (void)(e), (void)(f))
#endif

#endif
