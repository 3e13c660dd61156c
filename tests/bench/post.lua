-- What wrk sends, and what it tells at the end: one line of JSON.
wrk.method = "POST"
wrk.body = string.rep("x", tonumber(os.getenv("BODY")))
wrk.headers["content-type"] = "application/json"

-- A thread for each address: all of them get the same.
local threads = 0
function setup(thread)
  local addresses = {}
  for host, port in string.gmatch(os.getenv("ADDRESSES"), "([^,:]+):(%d+)") do
    table.insert(addresses, {host = host, port = port})
  end
  threads = threads + 1
  local address = addresses[threads]
  thread.addr = wrk.lookup(address.host, address.port)[1]
  thread:set("authority", address.host .. ":" .. address.port)
end

function init(arguments)
  wrk.headers["Host"] = authority
end

-- Hosts of the sink take turns, by the same addresses as in sink.py.
local spread = tonumber(os.getenv("SPREAD") or "1")
local function loopback(number)
  local upper, lower = math.floor(number / 250), number % 250
  return string.format("127.%d.%d.%d", 1 + math.floor(upper / 250), upper % 250, 1 + lower)
end

-- Every request with a head of its own, as with a trace or an idempotency key in it.
local own_heads = os.getenv("OWN_HEADS")
if own_heads or spread > 1 then
  local sent, given = 0, nil
  request = function()
    sent = sent + 1
    if own_heads then
      wrk.headers["x-request-id"] = string.format("%016x", sent)
    end
    if spread > 1 then
      given = given or wrk.path
      wrk.path = string.gsub(given, "127%.0%.0%.1", loopback(sent % spread), 1)
    end
    return wrk.format()
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format('{"acked": %d, "seconds": %.6f, "p50": %.6f, "p99": %.6f, "failed": %d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
