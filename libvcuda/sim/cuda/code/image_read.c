/*
 * Reads code images: finds out whether an image is PTX, an ELF file, a fat binary or what the linker made, and collects
 * its kernels and variables. The formats are read in cuda/code/ptx.c and cuda/code/cubin.c; charging for a module is in
 * cuda/code/module.c.
 */
#include "cuda/code/image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_KIND_PTX 1
#define FATBIN_KIND_ELF 2
#define MAX_IMAGE ((uint64_t)1 << 30)

struct wrapper {
	uint32_t magic, version;
	const void *data;
};

struct fatbin {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size; /* bytes of all entries */
};

struct entry {
	uint16_t kind, version;
	uint32_t header_size;
	uint64_t size; /* bytes after the header */
	uint32_t compressed_size;
	uint32_t reserved;
	uint16_t minor, major;
	uint32_t architecture; /* 75: compute capability 7.5 */
	uint32_t name_offset, name_length;
	uint64_t flags, unknown;
	uint64_t uncompressed_size;
};

/* Where an ELF file ends according to its headers: after its last section or section header. */
static size_t elf_size(const char *data)
{
	Elf64_Ehdr header;
	uint64_t end;

	memcpy(&header, data, sizeof header);
	end = header.e_shoff + (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
	if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > MAX_IMAGE)
		return 0;
	for (unsigned i = 0; i < header.e_shnum; i++) {
		Elf64_Shdr section;
		memcpy(&section, data + header.e_shoff + i * sizeof section, sizeof section);
		if (section.sh_type == SHT_NOBITS)
			continue;
		if (section.sh_offset > MAX_IMAGE || section.sh_size > MAX_IMAGE)
			return 0;
		if (section.sh_offset + section.sh_size > end)
			end = section.sh_offset + section.sh_size;
	}
	return end;
}

static enum sim_image_status read_text(const char *data, size_t size, struct sim_image *image)
{
	char *text = strndup(data, size);
	enum sim_image_status status = text ? sim_ptx_read(text, image) : SIM_IMAGE_NO_MEMORY;

	free(text);
	return status;
}

/*
 * How well a card can use an entry, 0: not at all. Compiled code runs on cards of the same major capability that are
 * not older, and comes before PTX, which any card takes that is not older.
 */
static unsigned fitness(const struct entry *entry, unsigned capability)
{
	if (entry->architecture > capability)
		return 0;
	if (entry->kind == FATBIN_KIND_ELF)
		return entry->architecture / 10 == capability / 10 ? 1000 + entry->architecture : 0;
	return entry->kind == FATBIN_KIND_PTX ? 1 + entry->architecture : 0;
}

/* Reads every entry: the names are the same whichever entry the card runs. That one's size counts. */
static enum sim_image_status read_entries(const char *at, uint64_t left, unsigned capability, struct sim_image *image)
{
	enum sim_image_status status = SIM_IMAGE_OK;
	struct entry entry;
	unsigned best = 0;

	while (left >= sizeof entry && status != SIM_IMAGE_NO_MEMORY) {
		memcpy(&entry, at, sizeof entry);
		if (entry.header_size < sizeof entry || entry.header_size > left ||
		    entry.size > left - entry.header_size)
			return SIM_IMAGE_INVALID;
		const char *content = at + entry.header_size;
		unsigned fits = fitness(&entry, capability);
		if (fits > best) {
			best = fits;
			image->code_size = entry.compressed_size ? entry.uncompressed_size : entry.size;
		}
		if (entry.compressed_size || (entry.kind != FATBIN_KIND_PTX && entry.kind != FATBIN_KIND_ELF))
			image->is_opaque = true;
		else if (entry.kind == FATBIN_KIND_PTX)
			status = read_text(content, entry.size, image);
		else
			status = sim_cubin_read(content, entry.size, image);
		at = content + entry.size;
		left -= entry.header_size + entry.size;
	}
	return status == SIM_IMAGE_OK && !best && capability != SIM_ANY_CAPABILITY ? SIM_IMAGE_NO_BINARY : status;
}

static enum sim_image_status read_fatbin(const char *data, size_t size, unsigned capability, struct sim_image *image)
{
	struct fatbin header;

	if (size && size < sizeof header)
		return SIM_IMAGE_INVALID;
	memcpy(&header, data, sizeof header);
	if (header.header_size < sizeof header || header.size > MAX_IMAGE ||
	    (size && header.size > size - header.header_size))
		return SIM_IMAGE_INVALID;
	image->size = header.header_size + header.size;
	return read_entries(data + header.header_size, header.size, capability, image);
}

static enum sim_image_status read_cubin(const char *data, size_t size, struct sim_image *image)
{
	image->size = size ? size : elf_size(data);
	return image->size >= sizeof(Elf64_Ehdr) ? sim_cubin_read(data, image->size, image) : SIM_IMAGE_INVALID;
}

static uint32_t magic_of(const char *data, size_t size)
{
	uint32_t magic = 0;

	/* Byte by byte up to a NUL: an invalid image may be a short string. */
	for (size_t i = 0; i < sizeof magic; i++)
		if ((size && i >= size) || !data[i])
			return 0;
	memcpy(&magic, data, sizeof magic);
	return magic;
}

static enum sim_image_status read_linked(const char *data, size_t size, unsigned capability, struct sim_image *image);

static enum sim_image_status read_any(const char *data, size_t size, unsigned capability, struct sim_image *image)
{
	enum sim_image_status status;
	struct wrapper wrapper;

	switch (magic_of(data, size)) {
	case 0x464c457fu: status = read_cubin(data, size, image); break;
	case FATBIN_MAGIC: return read_fatbin(data, size, capability, image);
	case SIM_LINKED_MAGIC: return read_linked(data, size, capability, image);
	case FATBIN_WRAPPER_MAGIC:
		memcpy(&wrapper, data, sizeof wrapper);
		if (!wrapper.data || magic_of(wrapper.data, 0) != FATBIN_MAGIC)
			return SIM_IMAGE_INVALID;
		return read_fatbin(wrapper.data, 0, capability, image);
	default: image->size = size ? size : strlen(data); status = read_text(data, image->size, image);
	}
	image->code_size = image->size;
	return status;
}

/* All inputs are part of the code. */
static enum sim_image_status read_linked(const char *data, size_t size, unsigned capability, struct sim_image *image)
{
	enum sim_image_status status = SIM_IMAGE_OK;
	struct sim_linked linked;
	uint64_t at = sizeof linked, length, code_size = 0;

	if (size && size < sizeof linked)
		return SIM_IMAGE_INVALID;
	memcpy(&linked, data, sizeof linked);
	if (linked.size > MAX_IMAGE || (size && linked.size > size))
		return SIM_IMAGE_INVALID;
	while (status == SIM_IMAGE_OK && at + sizeof length <= linked.size) {
		memcpy(&length, data + at, sizeof length);
		at += sizeof length;
		if (!length || length > linked.size - at || magic_of(data + at, length) == SIM_LINKED_MAGIC)
			return SIM_IMAGE_INVALID;
		status = read_any(data + at, length, capability, image);
		code_size += image->code_size;
		at += length;
	}
	image->size = linked.size;
	image->code_size = code_size;
	return status;
}

enum sim_image_status sim_image_read(const void *data, size_t size, unsigned capability, struct sim_image *image)
{
	*image = (struct sim_image){0};
	enum sim_image_status status = read_any(data, size, capability, image);
	if (status != SIM_IMAGE_OK)
		sim_image_free(image);
	return status;
}
