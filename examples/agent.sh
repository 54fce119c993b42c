#!/bin/sh
# An agent in sh and curl: takes one run after another, and works on it with a command of yours.
#
#   sh agent.sh                      # what work() below does, for the server of this folder or this machine
#   INTERLOCK_URL=http://host:7420 INTERLOCK_TOKEN=... sh agent.sh
#
# `interlock agent --exec CMD` does the same and more: it keeps what it has to report on disk.
set -eu

url=${INTERLOCK_URL:-.interlock/api.sock}
session="sh@$(uname -n):$$"

# api PATH BODY: the answer of a POST. It is sent again while the server is away; every call can be, without harm.
api() {
  set -- "$1" "$2" --silent --show-error --fail-with-body --retry 20 --retry-all-errors --retry-max-time 600
  path=$1 body=$2
  shift 2
  [ -z "${INTERLOCK_TOKEN:-}" ] || set -- "$@" --header "Authorization: Bearer $INTERLOCK_TOKEN"
  case $url in
    http*) base=$url ;;
    *) base=http://localhost; set -- "$@" --unix-socket "$url" ;;
  esac
  curl "$@" --json "$body" "$base/api/workflow-runs$path"
}

# json TEXT: as a string of JSON. field NAME: a field of the JSON on standard input.
json() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$1"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# The work itself: the prompt is on standard input, what is printed is the run's log.
work() { echo "I was asked:"; cat; }

while :; do
  # Waits for an offer, up to 30 seconds. The request id makes it safe to ask again: the claim is the same.
  claim=$(api /claim-next "{\"agent_session\": \"$session\", \"request_id\": \"$(date +%s%N)\", \"wait\": 30}")
  [ "$claim" != null ] || continue
  run=$(echo "$claim" | python3 -c 'import json, sys; print(json.load(sys.stdin)["run"]["id"])')
  under="\"agent_session\": \"$session\", \"fence\": $(echo "$claim" | field fence)"

  # A heartbeat well within the lease keeps the claim; its answer says when to stop.
  out=$(mktemp)
  echo "$claim" | field prompt | work >"$out" 2>&1 &
  working=$!
  while kill -0 $working 2>/dev/null; do
    beat=$(api "/$run/heartbeat" "{$under}") || beat='"continue":false'
    case $beat in *'"continue":false'*) kill $working ;; esac
    sleep 5 & wait $! # a signal does not wait for it
  done

  if wait $working; then ending=complete; else ending=fail; fi
  api "/$run/log" "{$under, \"offset\": 0, \"base64\": \"$(head -c 1000000 "$out" | base64 | tr -d '\n')\"}" >/dev/null || :
  api "/$run/$ending" "{$under, \"message\": $(json "$(tail -n 1 "$out")")}" >/dev/null || :
  rm "$out"
done
