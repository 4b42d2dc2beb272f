# SPDX-License-Identifier: Apache-2.0
# Completion in bash for the tools of banyan. Options and their values are those of the tool's own --help, so that they are
# always those of the version that is installed.
_banyan() {
  local tool=$1 word=$2 before=$3 help options values
  COMPREPLY=()
  help=$("$tool" --help 2>/dev/null) || return
  if [[ $before == --* ]]; then
    # "--wire f32|bf16|f16" of the usage, else files where the option takes one.
    values=$(sed -n "s/.*\[$before \([a-z0-9_]*|[a-z0-9_|]*\).*/\1/p" <<<"$help" | head -n 1)
    case $before in
    --from | --input | --output | --diff) compopt -o default 2>/dev/null; return ;;
    --format) values="text|json|svg|dot|xml|synthetic|hwloc" ;;
    --colour) values="auto|always|never" ;;
    esac
    if [[ -n $values ]]; then
      mapfile -t COMPREPLY < <(compgen -W "${values//|/ }" -- "$word")
      return
    fi
  fi
  if [[ $word == -* ]]; then
    options=$(grep -oE -- '--[a-z][a-z-]*' <<<"$help" | sort -u)
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    return
  fi
  # What comes first: the collectives of banyan-perf, the sections of banyan-info.
  case ${tool##*/} in
  banyan-perf) values="combine allgather shift broadcast barrier" ;;
  banyan-info) values=$(sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p' <<<"$help") ;;
  *) return ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
}
complete -F _banyan banyan-decode banyan-perf banyan-plan banyan-topo banyan-info
