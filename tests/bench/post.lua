-- What wrk sends, and what it tells at the end: one line of JSON.
wrk.method = "POST"
wrk.body = string.rep("x", tonumber(os.getenv("BODY")))
wrk.headers["content-type"] = "application/json"

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format('{"acked": %d, "seconds": %.6f, "p50": %.6f, "p99": %.6f, "failed": %d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
