# SPDX-License-Identifier: Apache-2.0
"""The recipe of banyan for Spack: put it into packages/banyan/ of a repository. The tarball comes from `make dist`, and is
looked for where spack runs, or in a mirror; `spack install --no-checksum` takes one of your own."""
import os

from spack.package import *


class Banyan(AutotoolsPackage, CudaPackage):
    """Merges attention partials across ranks in one topology-aware collective."""

    manual_download = True
    url = "file://{0}/banyan-0.1.0.tar.xz".format(os.getcwd())
    license("Apache-2.0")
    version("0.1.0")

    variant("mpi", default=True, description="libbanyan-mpi, and tools that run under mpirun")
    variant("ucx", default=True, description="ranks on several nodes")
    variant("tools", default=True, description="banyan-decode, banyan-perf, banyan-plan, banyan-topo and banyan-info")
    variant("topology", default=True, description="BANYAN_TOPO reads JSON, and the tools read XML")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type="build")
    depends_on("libsodium")
    depends_on("mpi", when="+mpi")
    depends_on("ucx@1.12:", when="+ucx", type=("build", "run"))
    depends_on("jansson@2.11:", when="+tools")
    depends_on("jansson@2.11:", when="+topology")
    depends_on("libxml2@2.9:", when="+topology")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("check", type="test")
    conflicts("platform=darwin", msg="banyan is for Linux")

    def configure_args(self):
        args = ["--with-sodium"]
        args += self.with_or_without("mpi") + self.with_or_without("ucx")
        args += self.with_or_without("libxml2", variant="topology")
        args.append("--with-jansson" if self.spec.satisfies("+tools") or self.spec.satisfies("+topology") else "--without-jansson")
        if self.spec.satisfies("+mpi"):
            args.append("MPICC=" + self.spec["mpi"].mpicc)
        if self.spec.satisfies("+cuda"):
            args.append("--with-cuda=" + self.spec["cuda"].prefix)
            archs = self.spec.variants["cuda_arch"].value
            if archs and archs[0] != "none":
                args.append("CUDA_ARCHS=" + " ".join("90a" if arch == "90" else arch for arch in archs))
        else:
            args.append("--without-cuda")
        return args
