#!/bin/sh
# An agent in sh and curl: takes one run after another, and works on it with a command of yours.
#
#   sh agent.sh                      # for the server of this folder
#   INTERLOCK_URL=http://host:7420 INTERLOCK_TOKEN=... sh agent.sh
#
# `interlock agent --exec CMD` does the same and more: what it has to report is on disk until it was taken.
set -eu

# The work itself: the prompt is on standard input, what is printed is the run's log. Yours goes here.
work() {
  echo "I was asked:"
  cat
}

url=${INTERLOCK_URL:-.interlock/api.sock}
session="sh@$(uname -n):$$"
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
trap 'exit 130' INT TERM

# api PATH: posts the JSON on standard input, and prints the answer. While the server is away it is tried again, which does
# no harm: the same call again is answered the same. A refusal (curl's 22) is not tried again.
api() {
  cat >"$folder/body"
  set -- "/api/workflow-runs$1" --silent --show-error --fail --retry 5 --json "@$folder/body"
  [ -z "${INTERLOCK_TOKEN:-}" ] || set -- "$@" --oauth2-bearer "$INTERLOCK_TOKEN"
  path=$1
  shift
  while :; do
    case $url in
      http*) curl "$@" "$url$path" && return 0 ;;
      *) curl "$@" --unix-socket "$url" "http://localhost$path" && return 0 ;;
    esac || [ $? -ne 22 ] || return 22
    sleep 2
  done
}

# field NAME: a field of the JSON in the claim. json: standard input as a string of JSON.
field() { python3 -c 'import json, sys; c = json.load(open(sys.argv[2])); print((c | c["run"])[sys.argv[1]])' "$1" "$folder/claim"; }
json() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.buffer.read().decode(errors="replace")))'; }

while :; do
  # Waits for an offer, up to 30 seconds. Asked again with the same request id, the claim is the same.
  echo "{\"agent_session\": \"$session\", \"request_id\": \"$session-$(date +%s%N)\", \"wait\": 30}" |
    api /claim-next >"$folder/claim"
  [ "$(cat "$folder/claim")" != null ] || continue
  run=$(field id)
  under="\"agent_session\": \"$session\", \"fence\": $(field fence)"

  field prompt | work >"$folder/log" 2>&1 &
  working=$!
  # Heartbeats, well within the lease, keep the claim; the answer says when to stop, and so does a refusal.
  while kill -0 $working 2>/dev/null; do
    beat=$(echo "{$under}" | api "/$run/heartbeat") || beat='"continue":false'
    case $beat in *'"continue":false'*) kill $working ;; esac
    for _ in 1 2 3 4 5; do ! kill -0 $working 2>/dev/null || sleep 1; done
  done
  ending=complete
  wait $working || ending=fail

  # A claim that is over is refused from here on, and somebody else's.
  printf '%s' "{$under, \"offset\": 0, \"text\": $(head -c 1000000 "$folder/log" | json)}" | api "/$run/log" >/dev/null || :
  printf '%s' "{$under, \"message\": $(tail -n 1 "$folder/log" | json)}" | api "/$run/$ending" >/dev/null || :
done
