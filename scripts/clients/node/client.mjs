// npm's xen-api: lists, creates, starts, watches, stops and destroys a VM.

import { createClient } from 'xen-api'

const NAME = 'client-node'
const TEMPLATE = 'Other install media'

const xapi = createClient({
  url: process.env.RINGWAY_URL,
  auth: { user: 'root', password: process.env.RINGWAY_PASSWORD },
})
await xapi.connect()
await xapi.objectsFetched
const all = Object.values(xapi.objects.all)
console.log(all.map(one => one.$type).sort().join(' '))
const named = (type, name) => all.find(one => one.$type === type && one.name_label === name)

const vm = await xapi.callAsync('VM.clone', named('VM', TEMPLATE).$ref, NAME)
await xapi.callAsync('VM.provision', vm)
const vdi = await xapi.call('VDI.create', {
  name_label: `${NAME} disk`,
  name_description: '',
  SR: xapi.pool.default_SR,
  virtual_size: 64 << 20,
  type: 'user',
  sharable: false,
  read_only: false,
  other_config: {},
})
await xapi.call('VBD.create', {
  VM: vm,
  VDI: vdi,
  userdevice: '1',
  bootable: false,
  mode: 'RW',
  type: 'Disk',
  empty: false,
  other_config: {},
  qos_algorithm_type: '',
  qos_algorithm_params: {},
})
await xapi.call('VIF.create', {
  VM: vm,
  network: named('network', 'Internal network').$ref,
  device: '0',
  MAC: '',
  MTU: 1500,
  other_config: {},
  qos_algorithm_type: '',
  qos_algorithm_params: {},
})
await xapi.setField('VM', vm, 'name_description', 'made by xen-api')
await xapi.setFieldEntry('VM', vm, 'other_config', 'client', NAME)
const state = async power => {
  const { power_state } = await xapi.barrier(vm)
  if (power_state !== power) {
    throw new Error(`the machine is ${power_state}, not ${power}`)
  }
}
await xapi.callAsync('VM.start', vm, false, false)
await state('Running')
await xapi.callAsync('VM.hard_shutdown', vm)
await state('Halted')
const slots = xapi.getObject(vm).$VBDs.filter(one => one.type === 'Disk')
await xapi.call('VM.destroy', vm)
for (const slot of slots) {
  await xapi.call('VDI.destroy', slot.VDI)
}
await xapi.disconnect()
process.exit(0)
