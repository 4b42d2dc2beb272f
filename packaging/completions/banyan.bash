# SPDX-License-Identifier: Apache-2.0
# Completion in bash for banyan's tools. Options and values come from the tool's --help, so they always match the
# installed version.
_banyan() {
  local tool=$1 word=$2 before=$3 help options values
  COMPREPLY=()
  help=$("$tool" --help 2>/dev/null) || return
  if [[ $before == --* ]]; then
    # Takes values from a line such as "  --wire f32|f16|bf16  ..." of the help, and files for options that take a file.
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
  # The usage line lists the possible first words: collectives of banyan-perf, sections of banyan-info.
  case ${tool##*/} in
  banyan-perf | banyan-info) values=$(sed '1!d; s/^usage: [a-z-]*//; s/\[OPTION\]\.\.\.//; s/[][|]/ /g' <<<"$help") ;;
  *) return ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
}
complete -F _banyan banyan-decode banyan-perf banyan-plan banyan-topo banyan-info
