# SPDX-License-Identifier: Apache-2.0
# Completion in bash for the tools of banyan. Options and their values are those of the tool's own --help, so that they are
# always those of the version that is installed.
_banyan() {
  local tool=$1 word=$2 before=$3 help options values
  COMPREPLY=()
  help=$("$tool" --help 2>/dev/null) || return
  if [[ $before == --* ]]; then
    # "  --wire f32|f16|bf16  ..." of the help, else files where the option takes one.
    values=$(sed -nE "s/^  $before ([a-z0-9_]+(\|[a-z0-9_]+)+).*/\1/p" <<<"$help" | head -n 1)
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
  # The words that may come first stand in the usage: collectives of banyan-perf, sections of banyan-info.
  case ${tool##*/} in
  banyan-perf | banyan-info) values=$(sed '1!d; s/^usage: [a-z-]*//; s/\[OPTION\]\.\.\.//; s/[][|]/ /g' <<<"$help") ;;
  *) return ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
}
complete -F _banyan banyan-decode banyan-perf banyan-plan banyan-topo banyan-info
