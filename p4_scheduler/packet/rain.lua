-- SPDX-License-Identifier: Apache-2.0
-- Wireshark's dissector for Rain packets; docs/rain-protocol.md is the description.
-- wireshark -X lua_script:rain.lua; or copy it to the plugin folder that Help > About > Folders names.

local rain = Proto("rain", "Rain in-network scheduling")

local KINDS = { [1] = "TASK", [2] = "TOKEN", [3] = "DISPATCH", [4] = "REPLY", [5] = "REJECT", [6] = "AFFINE",
                [7] = "PROBE", [8] = "RESET" }
local REASONS = { [1] = "queue full", [2] = "queue full for large tasks", [3] = "worker gone", [4] = "unknown type",
                  [5] = "tokens full" }
local RESETS = { [1] = "slice", [2] = "member", [3] = "slice and member" }
local HEADER_BYTES, DATA_BYTES, TRAILER_BYTES = 40, 8, 4
local PREWRITTEN = 2

local f = {
  version = ProtoField.uint8("rain.version", "Version"),
  kind = ProtoField.uint8("rain.kind", "Kind", base.DEC, KINDS),
  flags = ProtoField.uint8("rain.flags", "Flags", base.HEX),
  queued = ProtoField.bool("rain.flags.queued", "Waited in the switch", 8, nil, 0x01),
  prewritten = ProtoField.bool("rain.flags.prewritten", "Payload written beforehand", 8, nil, 0x02),
  answer = ProtoField.bool("rain.flags.answer", "Answer", 8, nil, 0x04),
  code = ProtoField.uint8("rain.code", "Code"),
  reason = ProtoField.uint8("rain.reason", "Reason", base.DEC, REASONS),
  reset = ProtoField.uint8("rain.reset", "What to reset", base.DEC, RESETS),
  type = ProtoField.uint8("rain.type", "Task type"),
  slice = ProtoField.uint8("rain.slice", "Slice"),
  fragment = ProtoField.uint8("rain.fragment", "Packet of the request"),
  fragments = ProtoField.uint8("rain.fragments", "Packets of the request"),
  client = ProtoField.uint16("rain.client", "Client"),
  size = ProtoField.uint16("rain.size", "Payload bytes"),
  request = ProtoField.uint32("rain.request", "Request"),
  epoch = ProtoField.uint16("rain.epoch", "Epoch"),
  member = ProtoField.uint16("rain.member", "Member"),
  ticket = ProtoField.uint32("rain.ticket", "Ticket"),
  tasks_seen = ProtoField.uint32("rain.probe.tasks_seen", "Tasks seen"),
  tokens_seen = ProtoField.uint32("rain.probe.tokens_seen", "Tokens seen"),
  tokens_held = ProtoField.uint32("rain.probe.tokens_held", "Tokens held for the member"),
  queue_tasks = ProtoField.uint32("rain.queue_tasks", "Waiting tasks"),
  switch_ns = ProtoField.uint32("rain.switch_ns", "Time in the switch (ns)"),
  data = ProtoField.bytes("rain.data", "Data"),
  crc = ProtoField.uint32("rain.payload.crc32c", "CRC-32C of the payload", base.HEX),
  length = ProtoField.uint32("rain.payload.length", "Length of the payload"),
  payload = ProtoField.bytes("rain.payload", "Payload"),
  trailer = ProtoField.bytes("rain.trailer", "Room for an ICRC"),
}
rain.fields = {}
for _, field in pairs(f) do table.insert(rain.fields, field) end

local bad_version = ProtoExpert.new("rain.bad_version", "Another version of Rain", expert.group.PROTOCOL, expert.severity.WARN)
local bad_length = ProtoExpert.new("rain.bad_length", "The packet's length does not fit its size field",
                                   expert.group.MALFORMED, expert.severity.ERROR)
rain.experts = { bad_version, bad_length }

local function add_data(tree, buffer, kind, flags, size)
  if kind == 7 or kind == 8 then
    if bit.band(flags, 4) ~= 0 then
      tree:add(f.tokens_seen, buffer(32, 4))
      tree:add(f.tokens_held, buffer(36, 4))
    end
  elseif size > DATA_BYTES then
    tree:add(f.crc, buffer(32, 4))
    tree:add(f.length, buffer(36, 4))
  else
    tree:add(f.data, buffer(32, DATA_BYTES))
    if size > 0 then tree:add(f.payload, buffer(32, size)) end
  end
end

local function add_body(tree, buffer, flags, size)
  local body = 0
  if size > DATA_BYTES and bit.band(flags, PREWRITTEN) == 0 then
    body = math.ceil(size / 4) * 4 + TRAILER_BYTES
  end
  if buffer:len() ~= HEADER_BYTES + body then
    tree:add_proto_expert_info(bad_length)
  elseif body > 0 then
    tree:add(f.payload, buffer(HEADER_BYTES, size))
    tree:add(f.trailer, buffer(HEADER_BYTES + body - TRAILER_BYTES, TRAILER_BYTES))
  end
end

function rain.dissector(buffer, packet, root)
  if buffer:len() < HEADER_BYTES then return 0 end
  packet.cols.protocol = "Rain"
  local kind, flags, code, size = buffer(1, 1):uint(), buffer(2, 1):uint(), buffer(3, 1):uint(), buffer(10, 2):uint()
  local tree = root:add(rain, buffer(), "Rain " .. (KINDS[kind] or "?"))
  local version = tree:add(f.version, buffer(0, 1))
  if buffer(0, 1):uint() ~= 1 then
    version:add_proto_expert_info(bad_version)
    return buffer:len()
  end
  tree:add(f.kind, buffer(1, 1))
  local flag_tree = tree:add(f.flags, buffer(2, 1))
  for _, name in ipairs({ "queued", "prewritten", "answer" }) do flag_tree:add(f[name], buffer(2, 1)) end
  tree:add(kind == 5 and f.reason or kind == 8 and f.reset or f.code, buffer(3, 1))
  tree:add(f.type, buffer(4, 1))
  tree:add(f.slice, buffer(5, 1))
  tree:add(f.fragment, buffer(6, 1))
  tree:add(f.fragments, buffer(7, 1))
  tree:add(f.client, buffer(8, 2))
  tree:add(f.size, buffer(10, 2))
  tree:add(f.request, buffer(12, 4))
  tree:add(f.epoch, buffer(16, 2))
  tree:add(f.member, buffer(18, 2))
  local answer = bit.band(flags, 4) ~= 0
  tree:add(answer and f.tasks_seen or f.ticket, buffer(20, 4))
  tree:add(f.queue_tasks, buffer(24, 4))
  tree:add(f.switch_ns, buffer(28, 4))
  add_data(tree, buffer, kind, flags, size)
  add_body(tree, buffer, flags, size)

  local info = (KINDS[kind] or "?") .. (answer and " answer" or "")
  if kind == 5 then info = info .. ": " .. (REASONS[code] or code) end
  if kind == 2 or kind == 7 then
    info = info .. " member " .. buffer(18, 2):uint()
  elseif kind ~= 8 then
    info = info .. " client " .. buffer(8, 2):uint() .. " request " .. buffer(12, 4):uint() .. ", " .. size .. " bytes"
  end
  packet.cols.info = info
  return buffer:len()
end

DissectorTable.get("udp.port"):add(17000, rain)
