"""Dynamic Resource Allocation: shares by resource claims. A part of `vgpu-device-plugin` with `kubernetes.dra: true`.

Belongs here: the DRA driver of one node: its sockets, its ResourceSlices, the record of prepared claims and the CDI
files. Not here: what a start does with a prepared claim (vgpu.hook.request.prepared_claims). With `kubernetes.dra:
true` the plugin serves no resource of the device plugin's API on this node. What others may rely on:

Names. The driver, the DeviceClass and the domain of attributes and taints is `gpu.vgpu.io`. The API is
`resource.k8s.io/v1`. The settings are `kubernetes.dra` (false), `kubernetes.dra_parts` (false), `kubernetes.dra_taint`
(`NoSchedule`, or `NoExecute`) and `kubernetes.cdi_dir` (`/var/run/cdi`). `<kubelet>` is kubelet's --root-dir: the
folder above that of `plugin.pod_resources_socket`, by default /var/lib/kubelet.

Sockets. `<kubelet>/plugins_registry/gpu.vgpu.io-<pod uid>-reg.sock` has pluginregistration.Registration: type
`DRAPlugin`, supported_versions `v1.DRAPlugin`, `v1beta1.DRAPlugin` in this order, and the endpoint
`<kubelet>/plugins/gpu.vgpu.io/dra-<pod uid>.sock`. The endpoint has DRAPlugin of k8s.io.kubelet.pkg.apis.dra.v1 and
.v1beta1, and v1alpha1.DRAResourceHealth. The pod's uid comes from the variable POD_UID; without it the names are
`gpu.vgpu.io-reg.sock` and `dra.sock`. Of two instances the newer one is called; a start deletes sockets that nobody
serves.

Slices. One pool, with the node's name; slices `<node>-gpu.vgpu.io-<n>` with up to 64 devices each, `spec.nodeName`, the
Node as owner. A device is a card, with its uuid in lower case as its name, `gpu-...`, and with
`allowMultipleAllocations: true`. Attributes: `uuid`, `model`, `architecture` (strings), `driverVersion`,
`cudaDriverVersion` (versions), `numaNode` (int), `nvlinkGroup` (string: cards with one value are linked),
`resource.kubernetes.io/pcieRoot`; one that is not known is absent. Capacity: `cores` (percent, min 1, step 1) and
`memory` (bytes, min 1Mi, step 1Mi); the default of each is the whole card. An ill card has the taint `gpu.vgpu.io/ill`
with the effect NoSchedule; that of `kubernetes.dra_taint` where the card itself is out of order. Nothing is published
where the server drops one of these fields, and while grants of the device plugin are left on the node.

Parts. With `kubernetes.dra_parts` there are devices `<card>-half-<n>`, `<card>-quarter-<n>` and `<card>-eighth-<n>`,
too, with the attribute `part` and without `allowMultipleAllocations`. Each device of a card draws on the card's counter
set, which has the card's name, in a slice of its own: `eighths`, 8 of 8 for shares. The DeviceClasses
`<part>.gpu.vgpu.io` have the `extendedResourceName` `gpu.vgpu.io/<part>`.

Configuration. `opaque.parameters` for this driver: apiVersion `gpu.vgpu.io/v1`, kind `ShareConfig`, `core-limit`
(`hard`, `soft`, 1 to 100), `priority`. A claim's fields go before those of its DeviceClass.

Prepare. Every result of our driver gets one CDI device `vgpu.io/claim=<claim uid>-<n>`, n counted from 0 among the
claim's results of this driver. `request_names` has the base name. The CDI file is `<cdi_dir>/vgpu.io-claim_<claim
uid>.json`. A device adds the two hooks of vgpu-hook, with `--prepared <claim uid>-<n>` among their arguments, and
nothing else: no variable, no annotation, no node. A result of a share without `consumedCapacity` is refused, and a
configuration that is not right. A claim that cannot be prepared is tried again within the call, for up to 40 s.
Unprepare removes file and record, and needs no API server and no NVIDIA driver.

Record. `<state>/claims/<claim uid>.json`, vgpu.config.prepared: namespace, name, uid, boot id, the pods of
`status.reservedFor`, and the results (n, request, pool, device, card, cores, memory in bytes, share id, core limit,
priority). A start restores the CDI files of the entries of this boot. A damaged entry is renamed to `<claim
uid>.json.damaged`. The plugin reads a claim again when a pod of this node names one that is prepared, because kubelet
does not prepare it a second time.

Budget. A container holds the results that its hooks name. Containers with the same results have one budget: one usage
region, one entry in the ledger. Containers with some results in common and others not are refused. Results on one card
add up. 100 cores and all memory are a whole card without libvcuda.
"""
