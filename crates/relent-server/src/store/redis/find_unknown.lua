-- ARGV: cursor, pattern of record keys, length of a record key, number of keys to scan. Returns the next cursor, the
-- time, and for each unknown outcome: key, fingerprint, owner, fencing token, whether it runs, end of the lease or of
-- the execution, step, repeated, expiry.
local reply = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[4], 'TYPE', 'string')
local length, size = tonumber(ARGV[3]), struct.size(FORMAT)
local found = {}
for _, name in ipairs(reply[2]) do
    local bytes = #name == length and redis.call('GETRANGE', name, 0, size - 1) or ''
    local r = #bytes == size and parse(bytes)
    if r and (r.stage == UNKNOWN or (r.stage == RUNNING and r.ends <= now)) then
        local runs = r.stage == RUNNING and 1 or 0
        found[#found + 1] = {
            string.sub(name, -32), r.fingerprint, r.owner, r.fence, runs, r.ends, r.step, r.repeated, r.expires,
        }
    end
end
return {reply[1], now, found}
