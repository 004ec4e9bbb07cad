-- KEYS: the record. ARGV: owner, fingerprint, lease and keep in microseconds, takeover, and until when the caller waits.
-- Returns what to do, fence, time (end of the lease, or what is left of it), step, repeated, answer, now.

-- Redis executes what it was sent before it stood still. The caller has given up by then, so nothing would run.
if now > tonumber(ARGV[6]) then
    return {'late', 0, 0, 0, 0, '', now}
end
local owner, fingerprint, takeover = ARGV[1], ARGV[2], ARGV[5]
local lease, keep = tonumber(ARGV[3]), tonumber(ARGV[4])

local function run(fence, step, repeated)
    local ends = after(now, lease)
    put({
        stage = RUNNING, repeated = repeated, step = step, fence = fence, ends = ends,
        expires = after(ends, keep), owner = owner, fingerprint = fingerprint,
    }, '')
    return {'run', fence, ends, step, repeated, '', now}
end

local r = read()
if not r then
    return run(1, 0, 0)
end
if r.stage == RELEASED then
    return run(r.fence + 1, 0, 0)
end
-- Before anything that tells of the other request.
if r.fingerprint ~= fingerprint then
    return {'mismatch', 0, 0, 0, 0, '', now}
end
if r.stage == COMPLETED then
    return {'replay', 0, 0, 0, 0, r.answer, now}
end
if r.stage == RUNNING and r.owner == owner then
    return {'run', r.fence, r.ends, r.step, r.repeated, '', now}
end
if r.stage == RUNNING and now < r.ends then
    return {'in-flight', 0, r.ends - now, 0, 0, '', now}
end
if takeover == 'rerun' then
    return run(r.fence + 1, 0, 1)
end
if takeover == 'resume' then
    return run(r.fence + 1, r.step, 1)
end
if r.stage ~= UNKNOWN then
    r.stage = UNKNOWN
    r.expires = after(now, keep)
    put(r, '')
end
return {'unknown', 0, 0, 0, 0, '', now}
